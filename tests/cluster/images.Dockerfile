# Images that tests run beside the project's own; put behind the Dockerfile at the root, whose stages they begin with.
#
# frameworks   the trainer image with what users install into theirs
# foreign      torch and frameworks, nothing of DDPJob; older packages than ours; an entrypoint of its own
# pythonless   a shell and no Python

FROM trainer-python AS frameworks-python
RUN pip install 'accelerate>=1.10' 'transformers>=4.57'

FROM frameworks-python AS frameworks
COPY --from=trainer-code /code /opt/ddpjob/code
USER 65532:65532
WORKDIR /tmp

FROM frameworks-python AS foreign
RUN rm "$(python -c 'import site; print(site.getsitepackages()[0])')/ddpjob.pth" \
 && pip install 'prometheus-client==0.8.0' 'pyyaml==6.0' \
 && printf '#!/bin/sh\necho "entrypoint: $1"\nexport FROM_ENTRYPOINT=yes\nexec "$@"\n' > /entry.sh \
 && chmod 755 /entry.sh
# What is of use to a program of the image, and to nobody else.
ENV HOME=/root PYTHONPATH=/opt/own
RUN mkdir /opt/own && echo "HERE = 'the image'" > /opt/own/own_module.py
USER 4711
WORKDIR /
ENTRYPOINT ["/entry.sh"]

FROM ${BASE_IMAGE} AS pythonless
RUN rm -rf /usr/bin/python* /usr/local/bin/python*
USER 4711
