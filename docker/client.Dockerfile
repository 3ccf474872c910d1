# kvyield, the client, in an image: for the sidecar and the DaemonSet of docker/kubernetes/.
# Build from the top of the repository: docker build -f docker/client.Dockerfile -t kvyield .
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY constraints.txt ./
COPY clients/python clients/python
RUN python -m venv /opt/kvyield \
    && /opt/kvyield/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt ./clients/python

FROM python:${PYTHON}-slim
RUN groupadd --system --gid 10001 kvyield \
    && useradd --system --uid 10001 --gid kvyield --no-create-home --shell /usr/sbin/nologin kvyield
COPY --from=build /opt/kvyield /opt/kvyield
ENV PATH=/opt/kvyield/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["kvyield"]
CMD ["--help"]
