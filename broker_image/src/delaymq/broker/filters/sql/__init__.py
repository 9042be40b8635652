"""SQL92 expressions over a message's properties: lexer, parser, syntax tree, code generator.

Contents: RocketMQ 4.9's grammar and comparisons, compiled to a Python function, and a byte prefilter. Elsewhere:
caching and costs (filters/). Invariants: an expression does bounded work per message, and only code that `codegen`
generates is executed. Imported with the first SQL expression.
"""
