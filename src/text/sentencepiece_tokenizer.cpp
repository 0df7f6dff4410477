#include "text/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <utility>

#include "prism/core/error.h"

namespace prism {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, SentencePiece's blank

void require(const sentencepiece::util::Status& status, const std::string& file) {
  check(status.ok(), "{}: {}", file, status.ToString());
}

/// The byte of a piece "<0xE2>".
char byte_of_piece(const std::string& piece) {
  return static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(std::string content, const std::string& file)
    : content_(std::move(content)),
      file_(file),
      model_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  const auto status = model_->LoadFromSerializedProto(content_);
  check(status.ok(), "{}: is no SentencePiece model ({})", file, status.ToString());
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) {
  std::vector<int> ids;
  require(model_->Encode(text, &ids), file_);
  return ids;
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) check_id(id);
  std::string text;
  require(model_->Decode(std::vector<int>(ids.begin(), ids.end()), &text), file_);
  return text;
}

std::string SentencePieceTokenizer::bytes_of(int32_t id) const {
  check_id(id);
  if (model_->IsControl(id)) return "";
  std::string piece = model_->IdToPiece(id);
  if (model_->IsByte(id)) return std::string(1, byte_of_piece(piece));
  if (model_->IsUnknown(id)) return " \xE2\x81\x87 ";  // U+2047, as the library decodes it
  for (size_t at = 0; (at = piece.find(kSpace, at)) != std::string::npos; ++at)
    piece.replace(at, kSpace.size(), " ");
  return piece;
}

int64_t SentencePieceTokenizer::vocabulary_size() const { return model_->GetPieceSize(); }

int32_t SentencePieceTokenizer::end_of_document() const {
  check(model_->eos_id() >= 0, "{}: the model has no end token (eos)", file_);
  return model_->eos_id();
}

}  // namespace prism
