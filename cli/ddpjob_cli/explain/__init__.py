"""Why a job is not running, slow or failed: observations in, findings out, ordered by weight."""
