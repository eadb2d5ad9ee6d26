#!/usr/bin/env bash
# Measures what docs/performance.md reports of a CPU, on idle cores, in some 15
# minutes:
#
#   benchmarks/run_on_cpu.sh            into benchmarks/results/
#   SMALL=1 benchmarks/run_on_cpu.sh    tiny sizes, to see that all of it runs
#
# A result that exists is measured again. What needs PyTorch or jemalloc says so
# where that is not installed. PYTHON is the interpreter, RESULTS the folder of
# results.
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

# JAX 0.10 runs CPU programs from its cache on one core.
unset JAX_COMPILATION_CACHE_DIR
# XLA's CPU backend allocates the temporaries of a program in each call. So that
# glibc does not return such memory to the system, which would clear its pages:
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647
# Then only the main thread may compute, or each thread would keep its own.
export JAX_CPU_ENABLE_ASYNC_DISPATCH=false

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
# Ways of allocating memory. The first row has none of the settings above.
unset MALLOC_MMAP_MAX_ MALLOC_TRIM_THRESHOLD_ JAX_CPU_ENABLE_ASYNC_DISPATCH
kept='MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647'
measure cpu_allocators --model retention_compact --train --threads 2 \
  "${compact[@]}" --peers "$kept JAX_CPU_ENABLE_ASYNC_DISPATCH=false" \
  "LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1"
