"""Where tasks are solved: definitions of environments, one instance an episode, and all that a verdict depends on."""

from rollbook.environments.describing import image_of
from rollbook.environments.loading import load_definition
from rollbook.environments.services import open_services
from rollbook.environments.single_turn import single_turn_image
from rollbook.environments.waiting import as_text, in_thread

__all__ = ["as_text", "image_of", "in_thread", "load_definition", "open_services", "single_turn_image"]
