#!/usr/bin/env bash
# Measures on a GPU all that docs/performance.md asks of one, in parts of at
# most ten minutes. A part whose result is there is passed over, and training
# goes on from its checkpoint, so call it again until it says that all is done:
#
#   benchmarks/run_on_gpu.sh                 the next part that is left
#   benchmarks/run_on_gpu.sh all             one after another
#   benchmarks/run_on_gpu.sh latency_small   that one
#   SMALL=1 benchmarks/run_on_gpu.sh all     tiny sizes, on any machine
#
# PYTHON is the interpreter, RESULTS the folder of results, RUNS that of the
# runs, LIMIT the seconds of a part, WORKERS the processes that decode. Where
# PyTorch or timm are not installed, their rows say so. Every result has the
# rates of products and of memory that were measured in the same rounds. Exit
# status: 0 all done, 75 something is left.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
results=${RESULTS:-benchmarks/results/gpu}
runs=${RUNS:-runs}
limit=${LIMIT:-570}
timm=(swin_base_patch4_window7_224 swin_small_patch4_window7_224 convnext_base)
small=(rmt_t rmt_s rmt_compact retention_compact swat_compact)
large=(rmt_large retention_large swat_large)
if [[ -n ${SMALL:-} ]]; then
  how=(--seconds 0.1 --repeats 2)
  size=(--batch 2 --image-size 32) scaled=(--batch 2 --image-size 32)
  models=(rmt_compact) small=(rmt_compact) large=(swat_compact)
  gated=(rmt_compact) scaled_model=rmt_compact
  memory=(--model rmt_compact --batches 2)
  training=(smoke --seeds 1 --only rmt) shown=smoke
  fed_large=(--model rmt_compact --batch 2 --images 16 --workers 1
    --pipeline decode)
  fed_compact=(--model rmt_compact --batch 2 --images 16 --pipeline device)
  # Most of the time goes into compiling what runs once.
  export XLA_FLAGS="${XLA_FLAGS:-} --xla_backend_optimization_level=0"
else
  how=(--seconds 3 --repeats 5)
  size=(--batch 128) scaled=(--batch 32)
  models=("${small[@]}" "${large[@]}")
  gated=(retention_compact retention_large) scaled_model=retention_large
  memory=(--model retention_large --classes 100 --image-sizes 160 224
    --batches 64 128)
  training=(table5) shown=table5
  fed_large=(--model retention_large "${size[@]}" --workers "${WORKERS:-12}"
    --pipeline device disk decode) # four programs at once: some 100 GB
  fed_compact=(--model retention_compact "${size[@]}" --pipeline device disk)
fi
mkdir -p "$results"
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$runs/compiled}

parts=()
for model in "${models[@]}"; do parts+=("train_$model" "inference_$model"); done
parts+=(pipeline_retention_large pipeline_retention_compact)
parts+=(timm latency_small latency_large scaling_batch scaling_resolution
  scaling_depth depthwise deterministic start memory training)

gswinrmt() { timeout "$limit" "$python" -m gswinrmt_jax.commands.main "$@"; }

# Runs one part, whose last file is written when it is complete.
part() {
  local file=$results/$1.json
  measure() { gswinrmt benchmark --json "$file" "${how[@]}" "$@"; }
  case $1 in
    train_* | inference_*)
      measure --model "${1#*_}" "--${1%%_*}" "${size[@]}" \
        --peers eager compile
      ;;
    pipeline_retention_large) measure "${fed_large[@]}" ;;
    pipeline_retention_compact) measure "${fed_compact[@]}" ;;
    timm)
      measure --model retention_large "${size[@]}" --peers "${timm[@]}"
      ;;
    latency_small) measure --model "${small[@]}" --latency --peers eager ;;
    latency_large) measure --model "${large[@]}" --latency --peers eager ;;
    scaling_*)
      measure --model "$scaled_model" "${scaled[@]}" --inference \
        --scaling "${1#scaling_}"
      ;;
    depthwise) measure --depthwise ;;
    deterministic) # beside train_retention_*: what reproducible sums cost
      XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_deterministic_ops=true" measure \
        --model "${gated[@]}" "${size[@]}" --train
      ;;
    start) measure --start ;;
    memory)
      timeout "$limit" "$python" benchmarks/remat_table.py "${memory[@]}" \
        --json "$file"
      ;;
    training) # 50 epochs, three models, three seeds; then beside the paper
      gswinrmt experiment "${training[@]}" --out "$runs" &&
        gswinrmt benchmark --latency --run "$runs/$shown"/*/ \
          --json "$results/latency_of_runs.json" "${how[@]}" &&
        gswinrmt report "$runs/$shown" --out "$results/report" &&
        mv "$results/latency_of_runs.json" "$file"
      ;;
    *)
      echo "no part '$1': ${parts[*]}" >&2
      exit 2
      ;;
  esac
}

wanted=("${parts[@]}")
if [[ $# -gt 0 && $1 != all ]]; then wanted=("$@"); fi
for name in "${wanted[@]}"; do
  [[ -e $results/$name.json ]] && continue
  echo "== $name"
  status=0
  (part "$name") || status=$?
  if [[ $status == 124 ]]; then
    echo "$name has had its $limit s: call again"
    exit 75
  fi
  if [[ $status != 0 ]]; then
    echo "$name failed ($status)" >&2
    [[ ${1:-} == all ]] || exit "$status"
  fi
  [[ ${1:-} == all ]] || break
done
for name in "${parts[@]}"; do
  if [[ ! -e $results/$name.json ]]; then
    echo "left: $name"
    exit 75
  fi
done
echo "all is measured: $results"
