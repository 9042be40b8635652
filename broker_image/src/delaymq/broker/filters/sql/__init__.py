"""SQL92 expressions over a message's properties: lexer, parser, syntax tree, code generator.

Here: RocketMQ 4.9's grammar and comparisons, compiled to a Python function, and a byte prefilter. Not here: caching and
costs (filters/). Invariant: an expression does bounded work per message and runs no code but what `codegen` emits.
Loaded with the first SQL expression.
"""
