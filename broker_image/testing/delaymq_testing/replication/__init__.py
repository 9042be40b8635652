"""Simulation of groups of replicas: members, register, network, disks and clocks, driven by one seed."""
