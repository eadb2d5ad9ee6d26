#!/usr/bin/env bash
# Prints the milliseconds from the start of training until its first logged step,
# with the smallest recipe, compiled quickly and in full (which differ on a CPU):
#
#   benchmarks/first_step.sh            once; benchmarks/first_step.sh 3, thrice
#
# PYTHON is the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

export JAX_ENABLE_COMPILATION_CACHE=false # each start compiles
run=$(mktemp -d)
training=
trap 'kill $training 2> /dev/null || true; rm -rf "$run"' EXIT
for ((round = 0; round < ${1:-1}; round++)); do
  for effort in quick full; do
    begin=$EPOCHREALTIME
    "${PYTHON:-python}" -m gswinrmt_jax train --config=digits_retention:smoke \
      --config.dtype=float32 --config.compile_effort=$effort \
      --config.log_every_steps=1 --workdir="$run/$round$effort" > /dev/null &
    training=$!
    until grep -qs '}$' "$run/$round$effort/metrics.jsonl"; do
      kill -0 "$training"
      sleep 0.02
    done
    end=$EPOCHREALTIME
    # The decimal sign is that of the locale.
    echo "$effort $(((${end//[.,]/} - ${begin//[.,]/}) / 1000)) ms"
    kill "$training" && wait "$training" || true
  done
done
