"""From a specification to a plan: check, measure, place, predict."""
