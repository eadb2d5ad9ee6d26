#!/usr/bin/env bash
# Measures what docs/performance.md reports of a CPU, on idle cores, in some 15
# minutes:
#
#   benchmarks/run_on_cpu.sh            into benchmarks/results/cpu/
#   SMALL=1 benchmarks/run_on_cpu.sh    tiny sizes, to see that all of it runs
#
# A result that exists is measured again. What needs PyTorch says so where that
# is not installed. PYTHON is the interpreter, RESULTS the folder of results.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
results=${RESULTS:-benchmarks/results/cpu}
mkdir -p "$results"
if [[ -n ${SMALL:-} ]]; then
  how=(--seconds 0.1 --repeats 2)
  compact=(--batch 2 --image-size 32) tiny=(--batch 2 --image-size 64)
  large=("${compact[@]}")
else
  how=(--seconds 3 --repeats 5)
  compact=(--batch 32) tiny=(--batch 8) large=(--batch 128)
fi

# JAX 0.10 runs CPU programs from its cache on one core.
unset JAX_COMPILATION_CACHE_DIR

measure() {
  local name=$1
  shift
  echo "== $name"
  "$python" benchmarks/speed.py --json "$results/$name.json" "${how[@]}" "$@"
}

measure cpu_depthwise --depthwise --threads 1 --seconds 0.5
measure cpu_compact --model retention_compact --train --threads 2 \
  --peers plain "${compact[@]}"
measure cpu_rmt_t --model rmt_t --train --inference --threads 1 \
  --peers eager "${tiny[@]}"
echo '== cpu_first_step'
taskset -c 0,1 benchmarks/first_step.sh 3 | tee "$results/cpu_first_step.txt"
# mimalloc, with which commands restart themselves, beside glibc's allocator.
measure cpu_allocators --model retention_compact --train --threads 2 \
  --peers GSWINRMT_ALLOCATOR=system "${large[@]}"
measure cpu_rmt_t_allocators --model rmt_t --train --inference --threads 1 \
  --peers GSWINRMT_ALLOCATOR=system "${tiny[@]}"
