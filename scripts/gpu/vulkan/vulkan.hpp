/* Found before Vulkan's own header of this name (CPATH, in scripts/gpu.sh), for ggml's Vulkan backend with Debian 12's headers, which are older than
 * the extension VK_EXT_layer_settings. ggml fills in these structures, and the loader ignores them unless a layer asks for them. */
#include_next <vulkan/vulkan.hpp>

#if !defined(FOREDRAFT_VULKAN_HPP) && VK_HEADER_VERSION < 272
#define FOREDRAFT_VULKAN_HPP

#include <vector>

namespace VULKAN_HPP_NAMESPACE {

enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
    const char * pLayerName;
    const char * pSettingName;
    LayerSettingTypeEXT type;
    uint32_t valueCount;
    const void * pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(uint32_t(settings.size())), pSettings(settings.data()) {}

    StructureType sType = StructureType(1000496000);
    const void * pNext = nullptr;
    uint32_t settingCount;
    const LayerSettingEXT * pSettings;
};

}  // namespace VULKAN_HPP_NAMESPACE
#endif
