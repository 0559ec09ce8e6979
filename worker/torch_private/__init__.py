"""The only room that touches torch's private modules; what each use relies on stands beside it.

Read against torch 2.11 to 2.15; another release touches only this room. Modules declare what they need in
``FACTS`` and ``PROBES``, which `facts` checks before the first compile. The tracer costs a second to
import, and `sympy` with it, so a warm load imports nothing of it; `recording`, `kernels`, `aoti_runtime`
and what they use are part of a warm load, and import neither.

Facts relied upon by the tracer, each with a test in ``tests/unit`` under the name of its module; those of the
other modules stand at their heads:

`tracing` (``test_tracing.py``):

* ``convert_frame.fullgraph_capture(method, args, kwargs)`` traces a bound method to one graph with all
  parameters lifted to inputs, does not run it, and needs a metrics context around it.
* With ``automatic_dynamic_shapes`` off, earlier traces of the process change nothing.

`lowering` (``test_lowering.py``):

* ``backend_input.graph_module`` placeholders carry ``meta["example_value"]`` (fake tensors, ``SymInt``)
  and ``_dynamo_source``; their order is the order in which the frame passes them.
* ``make_fx`` over an interpreter of Dynamo's graph keeps in-place operators and views as they are, and
  keeps each node's ``stack_trace``.

`traced_guards` (``test_traced_guards.py``):

* ``CheckFunctionManager`` builds every guard before it calls ``guard_filter_fn``, so entries seen there
  have their ``value`` and ``orig_guard.code_list``.
* ``output_graph.input_source_to_sizes_strides`` maps a tensor's source to its traced sizes and strides,
  in which a dynamic dimension is a ``SymInt``.
* A ``SymInt`` that was specialised has a ``node.maybe_as_int()``; ``TENSOR_MATCH`` compares it, and the shape
  guards leave it out.
* A key that is not there raises ``ObservedKeyError`` out of
  ``ConstDictVariable.getitem_const_raise_exception_if_absent``, and leaves no guard.

`traced_writes` (``test_traced_writes.py``):

* ``SideEffects.codegen_update_mutated`` runs before the frame is written; ``_get_modified_vars`` and
  ``store_attr_mutations`` say which Python objects the frame will write to.

`views` (``test_views.py``):

* With ``use_duck_shape`` off, sizes that happen to be equal are different symbols.
* A tensor that is described as no view gets sizes of its own, and puts no conditions on its base.
"""
