# `make` alone prints this help. Every target is a thing a person wants; the work is done by dvc and `enlace`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:

PYTHON ?= python3
VENV ?= .venv
READY := $(VENV)/.instalado
# Stages run plain `python`: this makes it the environment's, also under dvc.
export PATH := $(abspath $(VENV))/bin:$(PATH)

HW ?=
# Exported when it is given only: an empty or default one would hide that of .env.
ifdef GPUS
export GPUS
endif
P ?=
SET ?=

.PHONY: help setup repro train preset check chat smoke test test-all lint format deps clean

help: ## esta ayuda
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[1mmake %-10s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## instala todo en .venv

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Hace falta Python 3.11 o posterior: make setup PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[pipeline,distill,parquet,cluster,serve,export,dev]'
	@touch $@

repro: setup ## todo: corpus, respuestas, shards, entrenamiento y evaluación (lo que falte)
	@enlace config check
	@enlace corpus || dvc repro -f -s fetch-corpus
	@dvc repro
	@enlace summary

train: setup ## entrena con params.yaml; HW=rtx2060 cambia de equipo, GPUS=4 usa cuatro tarjetas, SET="train.lr=1e-3" lo prueba como experimento
	$(if $(HW),@enlace config hardware $(HW))
	@enlace config check $(SET)
	@enlace corpus || dvc repro -f -s fetch-corpus
	$(if $(SET),dvc exp run $(foreach kv,$(SET),-S $(kv)) train,dvc repro train)

preset: setup ## P=hogar-100m: pone un conjunto entero de valores en params.yaml
	@enlace config preset $(P)

check: setup ## comprueba params.yaml y configs/ en un segundo
	@enlace config check

chat: setup ## habla con el modelo entrenado
	@enlace chat

smoke: setup ## un minuto: 300 pasos byte a byte sobre texto en español, la pérdida baja a la vista
	@dvc repro --quiet fetch-corpus
	@python -m benchmarks.smoke

test: setup ## las pruebas (minutos)
	@pytest

test-all: setup ## las pruebas, también las lentas
	@pytest -m ''

lint: setup ## estilo y tipos
	@ruff check .
	@ruff format --check .
	@mypy
	@shellcheck scripts/*.sh .ci/run

format: setup ## arregla el estilo
	@ruff check --fix .
	@ruff format .

deps: setup ## pone en dvc.yaml los ficheros de src/ que cada etapa importa
	@python -m tests.stages.closure

clean: ## borra lo que se rehace gratis; nunca data/ledger (pagado) ni .runs (días de entrenamiento)
	rm -rf build dist dvc_plots .pytest_cache .mypy_cache .ruff_cache .hypothesis
