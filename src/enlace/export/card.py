"""The model card: what the model is, how good, what it was trained on, and under which licences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from enlace.model.transformer import Transformer


def model_card(
    model: Transformer, run: Mapping[str, Any], metrics: Mapping[str, Mapping[str, float]], sources: Iterable[Any]
) -> str:
    """The card of a trained model, in Spanish (Markdown).

    Args:
        run: run.json, what made the weights.
        metrics: what `eval` measured.
        sources: records of data/shards/sources.json: name, license, attribution, documents.
    """
    train = run["train"]
    vocab_size = model.embed_tokens.num_embeddings
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    tokens = train["steps"] * train["batch_tokens"] / 1e6
    listed = "\n".join(
        f"- **{source['name']}** ({source['documents']} documentos). Licencia: {source['license']}.\n"
        f"  {source['attribution']}"
        for source in sources
    )
    measured = "\n".join(
        f"| {group} | {name} | {value} |" for group, figures in metrics.items() for name, value in figures.items()
    )
    return f"""---
language: es
library_name: transformers
pipeline_tag: text-generation
---

# ENLACE {run["model"]}

Modelo de lenguaje en español entrenado desde cero con ENLACE: {millions:.1f} millones de parámetros,
{model.config.n_layers} capas, contexto de {train["seq_len"]} tokens, vocabulario de {vocab_size}. Arquitectura Qwen3.
Entrenado con {tokens:.1f} millones de tokens en {run["precision"]} (perfil {run["hardware"]}, ejecución {run["run"]}).

## Medidas

Sobre documentos reservados, que no vio al entrenar.

| | | |
|---|---|---|
{measured}

## Datos y licencias

{listed}

Los pesos derivan de esos textos: si los publicas, cita las fuentes y respeta sus licencias.

## Límites

Un modelo pequeño inventa datos con aplomo. Sirve para aprender y para preguntas sobre un texto que se le da; no para
decisiones de salud, dinero o derecho.
"""
