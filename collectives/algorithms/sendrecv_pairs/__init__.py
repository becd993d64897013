"""Send-receive in pairs."""
