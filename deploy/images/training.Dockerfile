# syntax=docker/dockerfile:1
# The training sidecar, with PyTorch on CUDA. Build from the root of the checkout:
#   docker build -f deploy/images/training.Dockerfile -t evertally/training:0.1.0 .
# PyTorch's wheels bring the CUDA libraries; the base brings what the driver is mounted into.
ARG BUILD_BASE=python:3.11-slim-bookworm
ARG RUN_BASE=nvidia/cuda:13.0.1-base-ubuntu24.04

FROM ${BUILD_BASE} AS build
WORKDIR /source
COPY bootstrap.lock deploy/images/requirements-training.lock ./
RUN python3 -m pip install --no-cache-dir --target /uv --require-hashes -r bootstrap.lock \
    && /uv/bin/uv venv --python /usr/local/bin/python3.11 /opt/evertally \
    && VIRTUAL_ENV=/opt/evertally /uv/bin/uv pip sync --no-cache --require-hashes requirements-training.lock
COPY pyproject.toml README.md LICENSE CHANGELOG.md SECURITY.md ./
COPY counters counters
COPY accountants accountants
COPY pipelines pipelines
RUN VIRTUAL_ENV=/opt/evertally /uv/bin/uv pip install --no-cache --no-deps --no-build-isolation . \
    && mkdir -p /empty

FROM ${RUN_BASE}
# what the Python of the build stage is linked against
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libbz2-1.0 libffi8 liblzma5 libsqlite3-0 libssl3t64 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /usr/local /usr/local
COPY --from=build /opt/evertally /opt/evertally
COPY deploy/images/stage_keys.py /opt/evertally/libexec/stage_keys.py
RUN ldconfig
COPY --from=build --chown=65532:65532 /empty /state
COPY --from=build --chown=65532:65532 /empty /keys
ENV XDG_CACHE_HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
WORKDIR /state
ENTRYPOINT ["/opt/evertally/bin/evertally"]
CMD ["train", "--help"]
