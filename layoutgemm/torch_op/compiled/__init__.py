"""Calls under torch.compile. Their checks while they are traced, their launches in Inductor's code, and its guards.

traced      checks, whose refusals the compiler reports with their text
lowering    what Inductor writes for an operator: a call of a function of `direct`
direct      these functions: products into a given tensor, without torch's dispatcher
call_sites  places in Inductor's code that call these, each with its launch once that is known
chains      the launches of one call, made again
flops       operations of each operator, for torch's counter
guards      the compiler's guards, by which eager calls find kept launches
c_calls     functions of C that find and make them

constant_objects   functions of objects whose results are constants of a graph
function_tape      a function of symbols as the tracer follows it
kept_launches      launches of calls that came before, by their arguments
repeated_calls     a kept launch, found by the places of its tensors
"""
