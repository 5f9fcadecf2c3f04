"""Results of a study: the schema of its metrics, reading, tables, figures, exports, and the report as a page."""
