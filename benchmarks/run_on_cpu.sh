#!/usr/bin/env bash
# Measures the bars of docs/performance.md that need no GPU, on idle cores, in
# some ten minutes:
#
#   benchmarks/run_on_cpu.sh            into benchmarks/results/
#   SMALL=1 benchmarks/run_on_cpu.sh    tiny sizes, to see that all of it runs
#
# Where PyTorch is not installed, its rows say so. PYTHON is the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
results=${RESULTS:-benchmarks/results}
if [[ -n ${SMALL:-} ]]; then
  how=(--seconds 0.1 --repeats 2)
  compact=(--batch 2 --image-size 32) tiny=(--batch 2 --image-size 64)
else
  how=(--seconds 3 --repeats 5)
  compact=(--batch 32) tiny=(--batch 8)
fi

# JAX 0.10 makes programs that run on one core of what it has cached.
unset JAX_COMPILATION_CACHE_DIR

measure() {
  local name=$1
  shift
  echo "== $name"
  "$python" -m gswinrmt_jax.commands.main benchmark \
    --json "$results/$name.json" "${how[@]}" "$@"
}

measure cpu_depthwise --depthwise --threads 1 --seconds 0.5
measure cpu_compact --model retention_compact --train --threads 2 \
  --peers plain "${compact[@]}"
measure cpu_rmt_t --model rmt_t --train --inference --threads 1 \
  --peers eager "${tiny[@]}"
measure cpu_start --start --threads 2
