"""Scripted faults over real processes. Each run ends in the same audit (`rig.Run.check_measurements`)."""
