"""Analytics of a Broker's stores: due runs, their SparkApplications, and their results.

`step` is the step of a pass. `schedule`, `application_state`, `results`, `retention` and `reporting` decide and send
no requests; `track`, `start`, `finish` and `cleanup` send them.

A run is recorded in the status before any object is created for it, and names are derived from the status. An
operator that replaces a killed one therefore continues the same run, and uses existing applications unchanged.
Nothing here changes Ready or Degraded, and no failure here ends a pass.
"""
