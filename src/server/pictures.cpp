#include "server/pictures.h"

#include <algorithm>

#include "server/later_task.h"
#include "server/picture_fetch.h"

namespace deepinfer::server {
namespace {

using recipe::ApiError;
using recipe::ContentBlock;
using recipe::ImageSource;

const char* field_of(recipe::Protocol protocol) {
    return protocol == recipe::Protocol::kResponses ? "input" : "messages";
}

bool is_url(const ImageSource& source) {
    return source.kind == ImageSource::Kind::kUrl;
}

std::string count_of(size_t index, size_t total) {
    return total == 1 ? "the picture" : "picture " + std::to_string(index + 1);
}

/// Counts what has been loaded against the limits.
class Budget {
  public:
    explicit Budget(const ServerLimits& limits) : limits_(limits) {}

    int64_t left() const { return limits_.request_image_bytes - total_; }
    /// "" or what is too large.
    std::string add(size_t size) {
        const int64_t bytes = static_cast<int64_t>(size);
        if (bytes > limits_.image_bytes) return over("has", bytes, limits_.image_bytes);
        total_ += bytes;
        if (total_ > limits_.request_image_bytes)
            return over("and those before it have", total_, limits_.request_image_bytes);
        return {};
    }

  private:
    static std::string over(const char* verb, int64_t is, int64_t most) {
        return std::string(verb) + " " + std::to_string(is) + " bytes, expected at most " +
               std::to_string(most);
    }
    const ServerLimits& limits_;
    int64_t total_ = 0;
};

/// One source's bytes; nothing and *error if it is refused.
std::optional<ImageInput> load(const ServerState& state,
                               const ImageSource& source,
                               const std::string& name,
                               const FetchRules& rules,
                               Budget* budget,
                               ApiError* error) {
    const Result<ImageDetail> detail = parse_image_detail(source.detail);
    if (!detail.ok()) {
        *error = bad_request(name + ": " + detail.status().message());
        return std::nullopt;
    }
    ImageInput image;
    if (is_url(source)) {
        FetchRules own = rules;
        own.max_bytes =
            std::min(state.config.limits.image_bytes, std::max<int64_t>(1, budget->left()));
        FetchResult fetched = fetch_picture(source.url, own);
        if (fetched.fault == 0) {
            if (Status s = check_image_format(fetched.body); !s.ok())
                fetched = {"", 400, s.message()};
        }
        if (fetched.fault != 0) {
            const std::string what = name + " cannot be fetched: " + fetched.message;
            if (fetched.fault == 400) {
                *error = bad_request(what);
            } else if (fetched.fault == 503) {
                *error = api_error(503, "overloaded_error", what);
            } else {
                *error = api_error(500, "internal_error", what, "image_fetch_failed");
            }
            return std::nullopt;
        }
        image.encoded = std::move(fetched.body);
        image.detail = detail.value();
    } else {
        Result<ImageInput> decoded = image_from_url(source.url, detail.value());
        if (!decoded.ok()) {
            *error = bad_request(name + ": " + decoded.status().message());
            return std::nullopt;
        }
        image = std::move(decoded).value();
    }
    if (const std::string fault = budget->add(image.encoded.size()); !fault.empty()) {
        *error = bad_request(name + " " + fault);
        return std::nullopt;
    }
    return image;
}

/// The pictures in the order of the prompt. The conversation forgets their text: up to 48 MiB that
/// nobody reads again.
std::optional<std::vector<ImageInput>> load_all(const ServerState& state,
                                                const std::atomic<bool>* cancel,
                                                BodyShare* held,
                                                recipe::ConvertedRequest* request,
                                                ApiError* error) {
    FetchRules rules;
    rules.hosts = state.config.image_url_hosts;
    rules.private_hosts = state.config.image_url_private_hosts;
    rules.deadline =
        std::chrono::steady_clock::now() + Milliseconds(state.config.limits.image_url_timeout_ms);
    rules.cancel = cancel;
    if (held != nullptr) rules.room = [held](int64_t bytes) { return held->take(bytes); };
    const auto sources = recipe::prompt_images(request->conversation);
    Budget budget(state.config.limits);
    std::vector<ImageInput> images;
    for (const ImageSource* source : sources) {
        const std::string name = count_of(images.size(), sources.size());
        auto image = load(state, *source, name, rules, &budget, error);
        if (!image) {
            error->param = field_of(request->protocol);
            return std::nullopt;
        }
        images.push_back(std::move(*image));
    }
    for (recipe::Message& message : request->conversation.messages)
        for (ContentBlock& block : message.content)
            if (block.image) block.image->url = {};
    return images;
}

/// Loads the pictures and expands the prompt.
bool complete(const ServerState& state,
              const std::atomic<bool>* cancel,
              BodyShare* held,
              PreparedConversation* prepared,
              ApiError* error) {
    auto images = load_all(state, cancel, held, &prepared->request, error);
    if (!images) return false;
    Request request;
    request.prompt_token_ids = std::move(prepared->prompt_token_ids);
    request.images = std::move(*images);
    Result<std::vector<int32_t>> expanded = state.backend()->expand_prompt(request);
    if (!expanded.ok()) {
        *error = picture_error(expanded.status(), prepared->request.protocol);
        return false;
    }
    prepared->prompt_token_ids = std::move(request.prompt_token_ids);
    prepared->images = std::move(request.images);
    prepared->expanded_ids = std::move(expanded).value();
    return true;
}

}  // namespace

ApiError picture_error(const Status& status, recipe::Protocol protocol) {
    ApiError error = status.code() == StatusCode::kOutOfRange ? bad_request(status.message())
                                                              : from_status(status);
    if (error.status == 400) error.param = field_of(protocol);
    return error;
}

Answer with_pictures(ServerState& state,
                     Exchange& exchange,
                     ErrorShape shape,
                     bool stream,
                     PreparedConversation prepared,
                     std::function<Answer(Exchange&, PreparedConversation&)> next) {
    const auto sources = recipe::prompt_images(prepared.request.conversation);
    const auto refuse = [&](const std::string& message) {
        return error_answer(shape, bad_request(message, field_of(prepared.request.protocol)));
    };
    if (sources.empty()) {
        prepared.expanded_ids = prepared.prompt_token_ids;
        return next(exchange, prepared);
    }
    if (!state.backend()->model_info().takes_images) return refuse("this model takes no pictures");
    const int64_t most = state.config.limits.images;
    if (static_cast<int64_t>(sources.size()) > most)
        return refuse("the request shows " + std::to_string(sources.size()) +
                      " pictures, expected at most " + std::to_string(most));
    ApiError error;
    const bool fetch = std::any_of(
        sources.begin(), sources.end(), [](const ImageSource* s) { return is_url(*s); });
    if (!fetch) {
        if (!complete(state, nullptr, nullptr, &prepared, &error))
            return error_answer(shape, error);
        return next(exchange, prepared);
    }
    if (state.fetchers == nullptr)
        return refuse("this server fetches no pictures from URLs; send the picture as a data: URL");
    LaterWork later;
    later.pool = state.fetchers;
    later.shape = shape;
    later.stream = stream;
    // The pool has queues and host names have slow servers: some room beyond the fetch.
    later.most = 2 * Milliseconds(state.config.limits.image_url_timeout_ms);
    later.late = api_error(500,
                           "internal_error",
                           "the pictures cannot be fetched: it took too long",
                           "image_fetch_failed");
    later.crowded = api_error(503, "overloaded_error", "too many pictures wait to be fetched");
    later.work = [&state,
                  shape,
                  waiting = std::make_shared<PreparedConversation>(std::move(prepared)),
                  next = std::move(next)](
                     Exchange& own, BodyShare& held, const std::atomic<bool>& given_up) {
        ApiError fault;
        if (!complete(state, &given_up, &held, waiting.get(), &fault))
            return error_answer(shape, fault);
        return next(own, *waiting);
    };
    return answer_later(state, exchange, std::move(later));
}

}  // namespace deepinfer::server
