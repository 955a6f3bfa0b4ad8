# Quorate over HTTP; docs/install.md tells how to run it. For stdio: docker run -i --env-file quorate.env quorate serve
FROM python:3.13-slim AS build
WORKDIR /source
COPY requirements/runtime.txt requirements/runtime.txt
RUN python -m venv /opt/quorate \
 && /opt/quorate/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY packages packages
COPY src src
RUN /opt/quorate/bin/pip install --no-cache-dir --no-deps ./packages/pve-schema ./packages/pve-simulator . \
 && /opt/quorate/bin/pip uninstall --yes pip \
 && python -m compileall -q -j 0 /opt/quorate

FROM python:3.13-slim
RUN groupadd --gid 10001 quorate \
 && useradd --uid 10001 --gid 10001 --home-dir /data --create-home --skel /var/empty --shell /usr/sbin/nologin quorate
COPY --from=build /opt/quorate /opt/quorate
ENV PATH=/opt/quorate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CONFIG_HOME=/data/config \
    XDG_STATE_HOME=/data/state
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8806
# It only asks whether the server lives, on this very machine: whose certificate it is does not matter.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s CMD ["python", "-c", "\
import os, ssl, urllib.request; \
scheme = 'https' if os.environ.get('QUORATE_HTTP_TLS_CERT') else 'http'; \
urllib.request.urlopen(f'{scheme}://127.0.0.1:8806/healthz', timeout=4, context=ssl._create_unverified_context())"]
ENTRYPOINT ["quorate"]
CMD ["serve", "--http", "0.0.0.0:8806"]
