#pragma once
#include "prism/serve/recommender_service.h"
#include "prism/train/run.h"

namespace prism {

/// A service on an opened run: shares the model, copies names, titles and counts.
RecommenderService make_service(const Run& run);

}  // namespace prism
