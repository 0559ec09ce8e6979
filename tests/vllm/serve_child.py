"""Answers one prompt with vLLM, and writes its counters: ``serve_child.py MODEL OUT [OPTIONS]``."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path


def main() -> None:
    model, out = Path(sys.argv[1]), Path(sys.argv[2])
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    linger_s = options.pop("linger_s", 0.0)
    started_s = time.monotonic()
    from vllm import LLM, SamplingParams
    from vllm.compilation.counter import compilation_counter

    imported_s = time.monotonic()
    given = {
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": 2,
        "kv_cache_memory_bytes": 1 << 24,
        "seed": 1,
    }
    llm = LLM(model=str(model), **{**given, **options})
    up_s = time.monotonic()
    answers = llm.generate(
        {"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4, temperature=0.0, detokenize=False)
    )
    time.sleep(linger_s)
    config = llm.llm_engine.vllm_config.compilation_config
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    out.write_text(
        json.dumps(
            {
                "counters": vars(compilation_counter),
                "compile_s": config.compilation_time,
                "import_s": imported_s - started_s,
                "up_s": up_s - imported_s,
                "cpu_s": sum(one.ru_utime + one.ru_stime for one in used),
                "tokens": list(answers[0].outputs[0].token_ids),
            },
            default=str,
        )
    )


if __name__ == "__main__":
    main()
