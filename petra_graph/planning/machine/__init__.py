"""The devices and compilers that a plan reckons with: those that are here, or those that a specification names."""
