"""Self-checks for what you bring yourself: a task (``derl-gym envs ID --check`` prints them), or an agent."""

from derl_gym.testing.agents import check_agent
from derl_gym.testing.report import Report
from derl_gym.testing.tasks import check_task

__all__ = ["Report", "check_agent", "check_task"]
