"""Devices that programs are compiled for without having one.

A target is a `stream_executor.GpuTargetConfigProto` in text form. The figures
are those of OpenXLA's `target_config/specs/h200.txtpb` (Apache-2.0).
"""

_DEVICE = {
    'threads_per_block_limit': 1024,
    'threads_per_warp': 32,
    'shared_memory_per_block': 49152,
    'shared_memory_per_core': 233472,
    'shared_memory_per_block_optin': 232448,
    'threads_per_core_limit': 2048,
    'registers_per_core_limit': 65536,
    'registers_per_block_limit': 65536,
    'core_count': 132,
    'fpus_per_core': 128,
    'block_dim_limit_x': 2147483647,
    'block_dim_limit_y': 65535,
    'block_dim_limit_z': 65535,
    'thread_dim_limit_x': 1024,
    'thread_dim_limit_y': 1024,
    'thread_dim_limit_z': 64,
    'memory_bandwidth': 4800000000000,
    'l2_cache_size': 52428800,
    'clock_rate_ghz': 1.98,
    'device_memory_size': 151397597184,
    'device_address_bits': 64,
    'pcie_bandwidth': 34359738368,
    'collective_memory_granularity': 2097152,
}
_TEXTS = {
    'device_vendor': 'NVIDIA Corporation',
    'name': 'NVIDIA H200 141GB HBM3e',
    'platform_version': 'Compute Capability 9.0a',
    'model_str': (
        'sm_9.0a with 151397597184B RAM, 132 cores, 1980000KHz clock, '
        '3750000KHz mem clock, 52428800B L2$'
    ),
    'driver_version': '13.0.0',
    'runtime_version': '12.8.0',
    'compile_time_toolkit_version': '12.8.0',
    'dnn_version': '9.10.0',
    'cub_version': '3.1.2',
}
# Keys are XLA's numbers of element types: clock in GHz, units, operations.
_SCALAR_RATES = {
    (4, 8): (1.98, 64, 1),
    (10, 16): (1.98, 128, 2),
    (11,): (1.98, 128, 1),
    (12,): (1.98, 64, 1),
}
_MATRIX_RATES = {
    (2, 6, 19, 20, 23, 24, 25, 28, 29, 33, 35, 36): (1.8295201, 4, 1024),
    (10, 16): (1.8295201, 4, 512),
    (11,): (1.8295201, 4, 256),
    (12,): (1.98, 4, 32),
}


def _rates(table):
  return ' '.join(
      f'rate_infos {{ key: {key} value {{ clock_rate_ghz: {clock} '
      f'units_per_core: {units} ops_per_clock: {operations} }} }}'
      for keys, (clock, units, operations) in table.items()
      for key in keys
  )


def _h200():
  fields = [f'{name}: {value}' for name, value in _DEVICE.items()]
  fields += [f'{name}: "{value}"' for name, value in _TEXTS.items()]
  fields += [
      'ecc_enabled: true',
      'cuda_compute_capability { major: 9 feature_extension: '
      'ACCELERATED_FEATURES }',
      'device_interconnect_info { active_links: 18 }',
      f'scalar_unit_description {{ {_rates(_SCALAR_RATES)} }}',
      f'matrix_unit_description {{ {_rates(_MATRIX_RATES)} }}',
  ]
  return (
      f'gpu_device_info {{ {" ".join(fields)} }} platform_name: "CUDA" '
      'dnn_version_info { major: 9 minor: 10 patch: 0 } '
      f'device_description_str: "{_TEXTS["name"]}"'
  )


TARGETS = {'h200': _h200()}
