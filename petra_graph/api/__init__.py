"""The Python API: functions, and the plans and runs that they return."""
