"""All-to-all-v: every pair of ranks has its own count; the moves are all-to-all's."""
