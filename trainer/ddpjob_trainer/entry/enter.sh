#!/bin/sh
# The first process of a pod whose image is not ours: finds its Python, and starts the launcher with it.
# Only what any POSIX shell has built in. The Python of a virtual environment or of conda comes before the system's
# where it has torch; without torch anywhere the first that is new enough does (a command may bring its own).
here=${0%/*}
new='' old=''
for python in python3 python ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"} ${CONDA_PREFIX:+"$CONDA_PREFIX/bin/python"} \
  /opt/conda/bin/python /opt/venv/bin/python /usr/local/bin/python3 /usr/bin/python3 \
  python3.13 python3.12 python3.11; do
  command -v "$python" > /dev/null 2>&1 || continue
  "$python" "$here/probe.py" > /dev/null 2>&1
  case $? in
    0) exec "$python" -I "$here/enter.py" ;;
    3) new=${new:-$python} ;;
    4) old=${old:-$python} ;;
  esac
done
[ -n "$new" ] && exec "$new" -I "$here/enter.py"
[ -n "$old" ] && exec "$old" "$here/enter.py"

words='the image has no Python: neither python3 nor python on PATH, nor in /opt/conda, /opt/venv, /usr/local or /usr; '
words="${words}use an image with Python 3.11 or newer, or name its Python in spec.python"
echo "[ddpjob] refused: $words" >&2
read -r protocol < "$here/protocol"
printf '{"protocol":%s,"outcome":"Refused","exitCode":86,"node":%s,"term":0,"generation":%s,"restarts":%s,"disruptions":%s,"message":"%s"}' \
  "$protocol" "$DDPJOB_NODE_INDEX" "$DDPJOB_GENERATION" "$DDPJOB_RESTARTS" "$DDPJOB_DISRUPTIONS" "$words" \
  > "${DDPJOB_TERMINATION_LOG:-/dev/termination-log}"
exit 86
