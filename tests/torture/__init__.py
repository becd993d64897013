"""Campaigns search for failures that no test knows. They print seeds; their failures replay."""
