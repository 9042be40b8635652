"""Shared support of tests against real programs: class paths, isolation, brokers, a Java client.

- ``java``: RocketMQ's libraries from Maven, kept in a cache, and compiled Java sources.
- ``caching``: the folder of that cache, and of what clusters need.
- ``locks``: lock files between the runs on one machine.
- ``apt``: Debian packages, installed while other processes may use apt-get.
- ``isolation``: a network namespace with loopback only; the real broker binds all interfaces, so it runs nowhere else.
- ``isolated``: ``python -m harness.isolated -- COMMAND`` runs a command in such a namespace.
- ``processes``: a server process with a log file, a bounded start and stop, and kill -9.
- ``brokers``: the real cluster and ours behind one interface.
- ``driver``: a JVM that runs RocketMQ's own clients and mqadmin by command.

Nothing here asserts anything about a broker; tests do.
"""
