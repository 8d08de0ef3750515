"""The place step: stages, devices and depths, and what each node keeps."""
