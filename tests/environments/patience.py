"""Limits for tests whose outcome must not depend on how busy the machine is: only wall time is longer than a test's."""

from dataclasses import replace

from rollbook.environments.sandbox import TEST

PATIENT = replace(TEST, wall_s=900.0)
