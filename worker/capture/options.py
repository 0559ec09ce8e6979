"""The options of `CompilerConfig` that the capture runtime obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.configs.compiler_config import CompilerConfig
    from warmrank.worker.devices import PoolHandle


class CaptureOptions(Value):
    """How graphs are captured, and what they do with memory.

    Attributes:
        clone_input: memory reuse, mode three: copy user inputs into buffers of the pool; without it a user
            input at a new address means recapture.
        clone_output: return copies, which later replays do not overwrite.
        limit: captured graphs of one function, after which further shapes run without capture.
        eager: never capture.
        pool: memory reuse, mode one: handle of the pool that all functions of the configuration share.
        reuse_in_function: memory reuse, mode two: all shapes of one function share a pool. Mode one takes its
            place.
        frozen_parameters: parameters and buffers never move, so their addresses are not compared.
        force_recapture: capture again for every call, for looking into faults.
    """

    clone_input: bool = True
    clone_output: bool = False
    limit: int = 64
    eager: bool = False
    pool: PoolHandle | None = None
    reuse_in_function: bool = True
    frozen_parameters: bool = False
    force_recapture: bool = False

    @classmethod
    def of(cls, config: CompilerConfig) -> CaptureOptions:
        """The options of a configuration."""
        aclgraph = config.debug.aclgraph
        return cls(
            clone_input=aclgraph.clone_input,
            clone_output=aclgraph.enable_output_clone,
            limit=aclgraph.static_capture_size_limit,
            eager=config.runs_eagerly(),
            pool=config.aclgraph_config.use_custom_pool,
            reuse_in_function=not aclgraph.disable_mempool_reuse_in_same_fx,
            frozen_parameters=config.experimental_config.frozen_parameter,
            force_recapture=config.npugraphex_config.force_recapture,
        )
