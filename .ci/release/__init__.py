"""Supply chain of DelayMQ: the licences of its dependencies, and the files of a release."""
