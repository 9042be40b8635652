"""Analytics of a Broker's stores: when a run is due, the SparkApplications of it, what came of them.

`step` is the step of a pass. `schedule`, `application_state`, `results`, `retention` and `reporting` decide and request
nothing; `track`, `start`, `finish` and `cleanup` make the requests.

A run is written into the status before anything is made for it, and names follow from the status. So an operator that
is killed at any instant is replaced by one that goes on with the same run: an application that is there already is
taken as it is. Nothing here changes Ready or Degraded, and none of its failures ends a pass.
"""
