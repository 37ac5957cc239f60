import foredraft from './index.cjs';

export const { download, Engine, ForedraftError, Stream, devices, picture, sound, version } = foredraft;
export default foredraft;
