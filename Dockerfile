# Images of DDPJob: `operator` (no torch) and `trainer` (torch).
#
#   docker build --target operator -t ddpjob/operator .
#   docker build --target trainer  -t ddpjob/trainer .
#
# Layers from seldom to often changed: Python, dependencies, code. Dependencies are installed from a list that is cut
# out of pyproject.toml, so that neither a change of code nor of a linter's setting downloads torch again.
# Plain Dockerfile syntax: builds with docker, podman and buildah, from any base image with Python 3.11 or newer.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS python
# HOME and caches lie in /tmp, which pods mount: the root file system is read-only there, the user has no home.
ENV PATH=/opt/ddpjob/bin:$PATH \
    HOME=/tmp \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONUNBUFFERED=1
RUN echo 'ddpjob:x:65532:65532:ddpjob:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'ddpjob:x:65532:' >> /etc/group \
 && python3 -m venv /opt/ddpjob \
 && echo /opt/ddpjob/code > "$(/opt/ddpjob/bin/python -c 'import site; print(site.getsitepackages()[0])')/ddpjob.pth"

# The dependencies of each extra, one file per target; only their content reaches the images below.
FROM python AS requirements
COPY pyproject.toml /src/pyproject.toml
RUN cd /src && python -c "import tomllib, pathlib; \
extras = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project']['optional-dependencies']; \
[pathlib.Path(name + '.txt').write_text('\n'.join(sorted(extras[name])) + '\n') for name in ('operator', 'trainer')]"

# The build backend, apart so that the images below need not have it.
FROM python AS build
RUN pip install 'hatchling>=1.27'
COPY pyproject.toml LICENSE /src/
RUN touch /src/README.md
COPY api /src/api

FROM build AS operator-code
COPY operator /src/operator
COPY trainer /src/trainer
RUN pip install --no-deps --no-build-isolation --no-index --target /code /src

FROM build AS trainer-code
COPY trainer /src/trainer
RUN pip install --no-deps --no-build-isolation --no-index --target /code /src

FROM python AS operator
COPY --from=requirements /src/operator.txt /opt/ddpjob/requirements.txt
RUN pip install -r /opt/ddpjob/requirements.txt
COPY --from=operator-code /code /opt/ddpjob/code
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "ddpjob_operator"]

FROM python AS trainer-python
COPY --from=requirements /src/trainer.txt /opt/ddpjob/requirements.txt
RUN pip install -r /opt/ddpjob/requirements.txt

FROM trainer-python AS trainer
# Images of Python come without the bytecode of its library, and pods cannot write any: each process would compile anew.
RUN python -m compileall -q -x '/(site-packages|dist-packages|test|tests|idlelib|lib2to3)/' \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=trainer-code /code /opt/ddpjob/code
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "ddpjob_trainer.launcher"]
