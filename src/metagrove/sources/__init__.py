"""Task sources: functions, images, tables and streams."""
