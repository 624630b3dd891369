"""Peer of `bench.rollout.published`: llama.cpp's server, with weights in F16.

Writes the GGUF file that BENCH_GGUF names again, with matrices in F16, reads
prompts.npy from a folder and prints its versions. Then every line has a number
of prompts and of tokens, and the peer generates greedily. It writes the answers
as text to llama_cpp_<number>.npy and answers the line with the seconds taken.
"""

import os
import pathlib
import sys
import time

import gguf
import numpy as np
import xllamacpp


def write_f16(source: str, target: pathlib.Path) -> None:
  """Writes a GGUF file again, with vectors in float32 and the rest in F16."""
  reader = gguf.GGUFReader(source)
  architecture = "general.architecture"
  writer = gguf.GGUFWriter(target, reader.fields[architecture].contents())
  for name, field in reader.fields.items():
    if name.startswith("GGUF.") or name in (architecture, "general.file_type"):
      continue
    kind, *of_entries = field.types
    writer.add_key_value(
      name, field.contents(), kind, of_entries[-1] if of_entries else None
    )
  writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
  for tensor in reader.tensors:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    dtype = np.float32 if values.ndim == 1 else np.float16
    writer.add_tensor(tensor.name, values.astype(dtype))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def make_server(path: pathlib.Path, slots: int, context: int, threads: int):
  """Returns a server on the CPU that keeps nothing between requests."""
  params = xllamacpp.CommonParams()
  params.model.path = str(path)
  params.n_parallel, params.n_ctx = slots, slots * context
  params.n_gpu_layers = 0
  params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
  params.cache_prompt, params.cache_ram_mib = False, 0
  return xllamacpp.Server(params)


def main() -> None:
  """Answers every line on standard input with one measurement."""
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # whatever else is printed
  folder = pathlib.Path(sys.argv[1])
  prompts = np.load(folder / "prompts.npy").tolist()
  write_f16(os.environ["BENCH_GGUF"], folder / "f16.gguf")
  server = make_server(folder / "f16.gguf", len(prompts), 256, int(sys.argv[2]))
  version = f"xllamacpp {xllamacpp.__version__}, {xllamacpp.get_system_info()}"
  print(" ".join(version.split()), file=answers, flush=True)
  for line in sys.stdin:
    number, answer = map(int, line.split())
    wall, cpu = time.perf_counter(), time.process_time()
    replies = server.handle_completions(
      {
        "prompt": prompts[:number],
        "n_predict": answer,
        "ignore_eos": True,
        "temperature": 0.0,
        "cache_prompt": False,
      }
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    choices = sorted(replies["choices"], key=lambda choice: choice["index"])
    if any(choice["finish_reason"] != "length" for choice in choices):
      raise RuntimeError(f"an answer ended before {answer} tokens")
    np.save(
      folder / f"llama_cpp_{number}.npy", [choice["text"] for choice in choices]
    )
    print(wall, cpu, file=answers, flush=True)


if __name__ == "__main__":
  main()
