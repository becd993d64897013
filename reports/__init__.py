"""What it means: records, statistics, tables and pages."""
