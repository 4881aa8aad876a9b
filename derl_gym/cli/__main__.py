"""``python -m derl_gym.cli``: the command where the script is not on the path."""

import sys

from derl_gym.cli import main

sys.exit(main())
