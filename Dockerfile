# Quorate over HTTP. The settings come as variables or as a file:
#   docker build -t quorate .
#   docker run -p 8806:8806 -v quorate:/data --env-file quorate.env quorate
FROM python:3.13-slim AS build
WORKDIR /source
COPY requirements/runtime.txt requirements/runtime.txt
RUN python -m venv /opt/quorate \
 && /opt/quorate/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/quorate/bin/pip install --no-cache-dir --no-deps . \
 && /opt/quorate/bin/pip uninstall --yes pip \
 && python -m compileall -q -j 0 /opt/quorate

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home-dir /data --create-home quorate
COPY --from=build /opt/quorate /opt/quorate
ENV PATH=/opt/quorate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CONFIG_HOME=/data/config \
    XDG_STATE_HOME=/data/state
USER quorate
WORKDIR /data
VOLUME /data
EXPOSE 8806
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8806/healthz', timeout=4)"]
ENTRYPOINT ["quorate"]
CMD ["serve", "--http", "0.0.0.0:8806"]
