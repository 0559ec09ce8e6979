"""The warm path: find an artifact, check its guards, bind it, run it. Imports nothing of the compile side.

A first call runs `function`, `find` (with `artifact`: what a file holds), `check` (all guards, once, with
`sources` and `decoding`), `variant` (binds the artifact to the module) and `runner`.

Imported when needed: `call_guards`, `snapshot`, `depends` and `per_call` by a second call; `describe`,
`compiling` and `files` by a miss or an adoption; `asked`, `constants` and `runtime_state` by functions that
depend on such things.
"""
