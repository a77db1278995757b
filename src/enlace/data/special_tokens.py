"""The tokens that no text contains. Their ids are their places here, in every tokenizer."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
IM_START_ID = SPECIAL_TOKENS.index("<|im_start|>")
