// SPDX-License-Identifier: Apache-2.0
// Certificates made by the test and the server side of TLS, by the same library that libcurl uses.
#pragma once

#include "vendor/dynamic_library.hpp"

#include "unit/vendor/http_server.hpp"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cstdio>

namespace headrace::test {

/// A key with a self-signed certificate for 127.0.0.1. Its PEM file is also its CA.
class TlsIdentity {
 public:
  TlsIdentity() {
    key_ = EVP_PKEY_Q_keygen_(nullptr, nullptr, "EC", "P-256");
    certificate_ = X509_new_();
    X509_set_version_(certificate_, 2);
    ASN1_INTEGER_set_(X509_get_serialNumber_(certificate_), 1);
    X509_gmtime_adj_(X509_getm_notBefore_(certificate_), -3600);
    X509_gmtime_adj_(X509_getm_notAfter_(certificate_), 3600);
    X509_set_pubkey_(certificate_, key_);
    X509_NAME* name = X509_get_subject_name_(certificate_);
    X509_NAME_add_entry_by_txt_(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1,
                                -1, 0);
    X509_set_issuer_name_(certificate_, name);
    X509_EXTENSION* names = X509V3_EXT_conf_nid_(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext_(certificate_, names, -1);
    X509_EXTENSION_free_(names);
    X509_sign_(certificate_, key_, EVP_sha256_());
    context_ = SSL_CTX_new_(TLS_server_method_());
    SSL_CTX_use_certificate_(context_, certificate_);
    SSL_CTX_use_PrivateKey_(context_, key_);
  }
  ~TlsIdentity() {
    SSL_CTX_free_(context_);
    X509_free_(certificate_);
    EVP_PKEY_free_(key_);
  }
  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  [[nodiscard]] bool write_certificate(const std::string& path) const {
    std::FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr) return false;
    const bool written = PEM_write_X509_(file, certificate_) == 1;
    return std::fclose(file) == 0 && written;
  }

  /// Null if the client breaks off the handshake.
  [[nodiscard]] std::unique_ptr<Connection> accept(int fd) const {
    auto connection = std::make_unique<TlsConnection>(*this, fd);
    if (SSL_accept_(connection->ssl) != 1) return nullptr;
    return connection;
  }

 private:
  struct TlsConnection : Connection {
    TlsConnection(const TlsIdentity& owner, int fd)
        : Connection(fd), identity(owner), ssl(owner.SSL_new_(owner.context_)) {
      identity.SSL_set_fd_(ssl, fd);
    }
    ~TlsConnection() override { identity.SSL_free_(ssl); }
    ssize_t read(char* buffer, std::size_t size) override {
      return identity.SSL_read_(ssl, buffer, static_cast<int>(size));
    }
    ssize_t write(std::string_view text) override {
      return identity.SSL_write_(ssl, text.data(), static_cast<int>(text.size()));
    }
    const TlsIdentity& identity;
    SSL* ssl;
  };

  template <class Function>
  static Function* get(const DynamicLibrary& library, const char* name) {
    Function* function = nullptr;
    library.bind(name, function).value();
    return function;
  }

  DynamicLibrary crypto_library_ = DynamicLibrary::open({"libcrypto.so.3"}, "libcrypto", "libssl3").value();
  DynamicLibrary ssl_library_ = DynamicLibrary::open({"libssl.so.3"}, "libssl", "libssl3").value();
#define CRYPTO(function) \
  decltype(&::function) function##_ = get<decltype(::function)>(crypto_library_, #function)
#define TLS(function) decltype(&::function) function##_ = get<decltype(::function)>(ssl_library_, #function)
  CRYPTO(EVP_PKEY_Q_keygen);
  CRYPTO(EVP_PKEY_free);
  CRYPTO(EVP_sha256);
  CRYPTO(X509_new);
  CRYPTO(X509_free);
  CRYPTO(X509_set_version);
  CRYPTO(X509_get_serialNumber);
  CRYPTO(ASN1_INTEGER_set);
  CRYPTO(X509_getm_notBefore);
  CRYPTO(X509_getm_notAfter);
  CRYPTO(X509_gmtime_adj);
  CRYPTO(X509_set_pubkey);
  CRYPTO(X509_get_subject_name);
  CRYPTO(X509_NAME_add_entry_by_txt);
  CRYPTO(X509_set_issuer_name);
  CRYPTO(X509V3_EXT_conf_nid);
  CRYPTO(X509_add_ext);
  CRYPTO(X509_EXTENSION_free);
  CRYPTO(X509_sign);
  CRYPTO(PEM_write_X509);
  TLS(TLS_server_method);
  TLS(SSL_CTX_new);
  TLS(SSL_CTX_free);
  TLS(SSL_CTX_use_certificate);
  TLS(SSL_CTX_use_PrivateKey);
  TLS(SSL_new);
  TLS(SSL_free);
  TLS(SSL_set_fd);
  TLS(SSL_accept);
  TLS(SSL_read);
  TLS(SSL_write);
#undef CRYPTO
#undef TLS
  EVP_PKEY* key_ = nullptr;
  X509* certificate_ = nullptr;
  SSL_CTX* context_ = nullptr;
};

}  // namespace headrace::test
