"""Where tasks are solved: the record of everything an observation or verdict may depend on."""

from rollbook.environments.single_turn import single_turn_image

__all__ = ["single_turn_image"]
