"""Scripted faults in real processes. Each run ends with the same check (`rig.Run.check_measurements`)."""
