"""The modules that the commands use. ``__init__.py`` loads each on first use."""

from . import casimir_table as casimir_table
from . import catalogue as catalogue
from . import drawings as drawings
from . import executors as executors
from . import experiments as experiments
from . import figures as figures
from . import gauge_picture as gauge_picture
from . import law_search as law_search
from . import metrics as metrics
from . import models as models
from . import peers as peers
from . import recordings as recordings
from . import results_page as results_page
from . import studies as studies
from . import tables as tables
