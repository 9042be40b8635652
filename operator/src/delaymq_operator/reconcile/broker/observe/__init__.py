"""What is there and what is wanted: the spec checked, objects, brokers, late pods, schedulers.

Reads only: nothing here changes an object of the cluster, apart from Events, or a broker.
"""
